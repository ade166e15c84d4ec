"""``aft rules`` and ``aft exlets``: show, teach and undo the rules that decide about faults."""
