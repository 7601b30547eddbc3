"""What every launch script begins with: it serves the folder that it lies in, or nothing."""

FOLDER = """\
here=$(readlink -f -- "$0" && echo .) || exit 1
here=${here%/*}
"""  # of the script, through links to it

# Through links to the script; the dot keeps a line break that the folder's name may end in.
HERE = """\
here=$(readlink -f -- "$0" && echo .) || exit 1
here=${here%?.}
cd -- "${here%/*}/" || exit 1
"""
