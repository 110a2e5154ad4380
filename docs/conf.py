"""Configuration of the documentation site; `make docs` builds it with Sphinx."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from site_pages import OFF_SITE

from glassloop import __version__

project = "Glassloop"
project_copyright = "the Glassloop contributors"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages"]
exclude_patterns = ["*.py", *OFF_SITE]
nitpicky = False
show_warning_types = True
smartquotes = False  # else --header becomes a dash

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
default_role = "code"
add_module_names = False
toc_object_entries = False

html_theme = "furo"
html_title = f"Glassloop {version}"
html_static_path = ["static", "images"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_logo = "images/logo.svg"
html_favicon = "images/mark.svg"
html_theme_options = {
    "sidebar_hide_name": True,
    "top_of_page_buttons": [],
    "light_css_variables": {
        "color-brand-primary": "#0b7285",
        "color-brand-content": "#0b7285",
        "color-brand-visited": "#5f3dc4",
        "color-sidebar-background": "#f4fafb",
    },
    "dark_css_variables": {
        "color-brand-primary": "#3bc9db",
        "color-brand-content": "#66d9e8",
        "color-brand-visited": "#b197fc",
    },
}
