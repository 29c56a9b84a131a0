"""What this process has once: its lines of log, its flight recorder, and what happens at its end."""
