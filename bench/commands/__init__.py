"""The commands of ``gatherbench``, a file each; they load torch and pandas only when they run."""
