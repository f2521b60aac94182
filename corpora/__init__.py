"""Data only: the packs and references that ship with promptkit (a package so that installers carry it)."""
