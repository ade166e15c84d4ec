"""The limits of the machine: the same writes and the same hops without aft."""
