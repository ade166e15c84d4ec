"""What the machine allows: the same writes and the same hops with nothing around them."""
