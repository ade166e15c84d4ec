"""Output of the command line: tables, stories, JSON documents and advice."""
