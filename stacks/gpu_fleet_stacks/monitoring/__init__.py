"""Dashboards beside the cloud's own pages: files for Prometheus and Grafana."""
