"""Rules: choose the exlet that answers an exception, by its case; they are taught while runs are running."""
