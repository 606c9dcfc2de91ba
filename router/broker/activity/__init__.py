"""What the broker does, second by second and over the last day, for the console's overview."""
