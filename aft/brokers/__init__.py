"""Message brokers behind one small port: see ``base`` for what it guarantees."""
