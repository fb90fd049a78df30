"""A folder of code for each lesson: its pictures, its dashboard, its measurements, and its graders.

A folder is named as its lesson is in `lessons/`, without the number. `notebook.check` finds the graders of exercise 4.1
in `grading` of the folder of lesson 04.
"""
