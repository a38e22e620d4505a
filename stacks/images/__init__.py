"""Builds of a stack's image on its cloud: started, followed, promoted, rolled back."""
