"""What a dispatcher of the role *sweep* does besides faults: stranded work, schedules, operations."""
