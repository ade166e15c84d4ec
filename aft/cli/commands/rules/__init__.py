"""``aft rules`` and ``aft exlets``: show, teach and undo what is done about which fault."""
