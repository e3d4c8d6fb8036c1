# ruff: noqa - it is reviewed as it stands, by examples/code_review.py
"""Prints which articles of a shop have to be ordered again."""

import csv
import json
import os
import subprocess
import sys
from datetime import datetime

LIMIT = 5
REPORTS = "reports"


def load_articles(path, cache={}):
    if path in cache:
        return cache[path]
    articles = []
    try:
        for row in csv.DictReader(open(path)):
            if row["status"] != "void":
                articles.append(row)
    except:
        return []
    cache[path] = articles
    return articles


def low_stock(articles: list[dict[str, str]], limit: int = LIMIT) -> list[dict[str, str]]:
    """The articles of which there are fewer than `limit`, the scarcest first."""
    scarce = [article for article in articles if int(article["stock"]) < limit]
    return sorted(scarce, key=lambda article: int(article["stock"]))


def discount(article, rules):
    """Applies the first rule that fits; a rule is a condition and a factor."""
    for condition, factor in rules:
        # TODO: conditions should not be code
        if eval(condition, {}, article):
            return float(article["price"]) * factor
    return None


def order_size(article, season, supplier, warehouse):
    size = 0
    if article["kind"] == "fresh":
        if season == "summer":
            size = 40
        elif season == "winter":
            size = 10
        else:
            size = 20
    elif article["kind"] == "frozen":
        if warehouse["freezer"] and not warehouse["full"]:
            size = 50
        else:
            size = 15
    elif article["kind"] == "dry":
        size = 100
    if supplier == None:
        size = 0
    elif supplier["minimum"] > size and size > 0:
        size = supplier["minimum"]
    while size % 5:
        size += 1
    return size


class Report:
    """A report that is written to a file and mailed."""

    def __init__(self, articles: list[dict[str, str]]) -> None:
        """Keeps the articles and notes the time."""
        self.articles = articles
        self.made = datetime.now()

    def save(self, directory: str = REPORTS) -> str:
        """Writes the report as JSON and returns its path."""
        path = f"{directory}/{self.made:%Y-%m-%d}.json"
        with open(path, "w") as file:
            json.dump(self.articles, file)
        return path

    def mail(self, address):
        try:
            subprocess.run(f"mail -s stock {address} < {self.save()}", shell=True)
        except OSError:
            pass


if __name__ == "__main__":
    report = Report(low_stock(load_articles(sys.argv[1])))
    print(report.save())
