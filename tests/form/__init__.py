"""The form of the notebooks: each check takes a notebook and returns what is wrong with it.

``NOTEBOOK`` holds for every page, ``CHAPTER`` for chapters. A message says what is wrong, why that
matters, and what to do. The records are looked at in test_form.py.
"""

from form.lesson import (
    cards_have_rows,
    exercises_have_solutions,
    sections,
    sources,
    values_not_verdicts,
    visible_cells_are_short,
)
from form.lesson import shows_pair as shows_pair
from form.page import (
    cells_have_names,
    cells_were_run_in_order,
    figures_have_alternative_text,
    figures_have_captions,
    figures_have_titles,
    figures_say_where_they_were_measured,
    first_cell_names_the_book,
    no_cell_is_endless,
    outputs_are_compared,
    outputs_are_of_the_machines_that_measured,
    page_and_jupyterlab_hide_the_same,
    predictions_are_checked,
    prose_quotes_no_number_without_its_machine,
    tags_are_known,
)
from form.page import constants_changed_in_place as constants_changed_in_place
from form.page import (
    experiments_use_only_what_their_hash_covers as experiments_use_only_what_their_hash_covers,
)
from form.page import is_said_of as is_said_of
from form.page import recorded_by_name as recorded_by_name
from form.start import (
    box_speaks_of_records,
    code_to_keep,
    first_screen,
    imports_are_out_of_sight,
    numbers_of_the_box_are_paired,
    opening,
    reading_time,
)
from form.start import cards_in as cards_in
from form.start import first_words as first_words
from form.start import title as title

NOTEBOOK = (
    first_cell_names_the_book,
    cells_were_run_in_order,
    cells_have_names,
    no_cell_is_endless,
    tags_are_known,
    page_and_jupyterlab_hide_the_same,
    figures_have_alternative_text,
    figures_have_captions,
    figures_say_where_they_were_measured,
    figures_have_titles,
    outputs_are_compared,
    prose_quotes_no_number_without_its_machine,
    predictions_are_checked,
    outputs_are_of_the_machines_that_measured,
)
CHAPTER = (
    reading_time,
    opening,
    imports_are_out_of_sight,
    first_screen,
    code_to_keep,
    numbers_of_the_box_are_paired,
    box_speaks_of_records,
    sections,
    exercises_have_solutions,
    sources,
    values_not_verdicts,
    cards_have_rows,
    visible_cells_are_short,
)
