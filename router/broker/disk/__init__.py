"""The disk under the broker's data: files, SQLite databases, and their failures.

It knows no log. `files.Disk` is the one seam through which files are written, so that tests can
fail each operation.
"""
