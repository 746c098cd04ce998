"""The whole check of a migration: both programs run, compared in the guide's order, and what differs explained."""
