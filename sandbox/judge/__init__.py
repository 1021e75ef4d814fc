"""The judge: reference, candidate and clock in processes of their own. device.py has the picture."""
