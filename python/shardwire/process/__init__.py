"""The parts that exist once per process: the log, the flight recorder, the end of the program, and what
the host has for connections."""
