"""From what is observed to a plan: acceptance, conditions, phase, status, clean-up. Pure; the clock is an argument."""
