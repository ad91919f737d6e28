// Show the source code of an update at once: the reference pages of agents include little else of it.
document.querySelectorAll("details.mkdocstrings-source").forEach((block) => { block.open = true; });
