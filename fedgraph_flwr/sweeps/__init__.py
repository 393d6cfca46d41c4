"""Many runs: what a table asks for, the runs of it that are still to be made, and what they add up to."""
