"""What users watch a fleet with beside the cloud's own pages: Prometheus and Grafana, as files."""
