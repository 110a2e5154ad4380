"""From a source of texts to batches: sources -> examples -> encoding -> batches."""
