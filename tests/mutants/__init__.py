"""Mutation tests: which single changes of the code does no test notice?"""
