"""Views for people: stories of runs, previews of an undo, health and versions. Reads only."""
