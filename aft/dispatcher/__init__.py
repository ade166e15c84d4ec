"""The dispatcher: takes faults off the queue, decides about each, and sends its run on."""
