"""Rules as the application offers them: read, teach, preview and save."""
