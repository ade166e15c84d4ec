"""Orders of people and exlets to a run: what they ask for is checked here, and carried out by the run's owner."""
