"""What `ringdp check-hosts` looks at before a job runs on several hosts: versions, addresses, ports, clocks, links."""
