"""Recovery: ladders and delays, the outbox's publishers, admission of messages, rescue of dead workers' runs."""
