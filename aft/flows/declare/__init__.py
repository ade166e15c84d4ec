"""The declarations that users write: activities, flows, their options, and the functions that flow code may call."""
