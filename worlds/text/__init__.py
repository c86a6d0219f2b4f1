"""Text games: adventures, household tasks, and questions to answer with tools."""
