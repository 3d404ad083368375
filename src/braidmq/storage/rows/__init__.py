"""What is stored beside records: sessions, retained and delayed messages, groups, producers, readers."""
