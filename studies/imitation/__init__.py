"""RL compared with imitation and scripted players."""
