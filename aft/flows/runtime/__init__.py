"""Services that a process shares between the runs it executes: threads, the event loop, and watches over attempts."""
