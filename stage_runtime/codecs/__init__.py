"""What crosses a boundary as codes instead of the layers' own numbers."""
