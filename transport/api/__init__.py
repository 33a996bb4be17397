"""The operations, declared once for every face: what may be asked and what is answered."""
