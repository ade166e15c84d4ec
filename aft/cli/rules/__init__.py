"""``aft rules`` and ``aft exlets``: what is done about which fault, seen, taught and taken back."""
