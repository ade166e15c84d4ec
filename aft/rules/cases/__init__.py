"""Cases: the facts that rules are asked about, their sources, and what a fault stores of its step."""
