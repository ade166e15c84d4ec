"""Models how far aft scales beyond one machine, from its costs on this one.

``measure`` finds out what each step costs, here, on a real PostgreSQL and RabbitMQ, and writes ``costs.json``.
``model`` adds those costs up for a cluster and names the resource that is full first. ``fluid`` moves 10⁹ runs
through it, shard by shard and second by second; ``events`` moves a few thousand exactly, one by one, so that the two
can be compared.

``python -m bench.scale`` prints the report; ``docs/scaling.md`` tells what follows from it.
"""
