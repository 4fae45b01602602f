#!/bin/sh
exec /usr/bin/python3 tools/resident.py "$@"
