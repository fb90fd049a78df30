"""A folder of code for each lesson: its pictures, its dashboard, its measurements, and its graders.

All of a lesson is in its folder: `lecture.py` and `lab.py`, which its notebooks are made from, `lesson.toml`, the
instructor's page, its terms of the glossary, and its code. `order.toml` says which lesson has which number;
`notebook.check` finds the graders of exercise 4.1 in `grading` of the folder of lesson 04.
"""
