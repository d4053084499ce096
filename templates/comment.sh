#!/usr/bin/env bash
# Write a report into the pull request NUMBER: into the comment that is there, or a new one.
set -euo pipefail
report=$1
# A comment has at most 65,536 characters.
body=$(head --bytes 60000 "$report")
comments="repos/$GITHUB_REPOSITORY/issues/$NUMBER/comments"
known=$(gh api --paginate "$comments" \
  --jq '.[] | select(.body | startswith("<!-- nestsim -->")) | .id' | sed --quiet 1p)
if [ -n "$known" ]; then
  gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$known" --raw-field "body=$body" --silent
else
  gh api --method POST "$comments" --raw-field "body=$body" --silent
fi
