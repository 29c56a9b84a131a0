"""The parts that exist once per process: the log, the flight recorder, and the end of the program."""
