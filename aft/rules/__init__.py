"""Rules: which exlet answers an exception, chosen by its case, and taught while runs are running."""
