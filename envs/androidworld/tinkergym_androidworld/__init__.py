"""Tasks on an Android device: AndroidWorld's on an emulator, and a few on a fake phone."""
