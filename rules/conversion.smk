rule conversion:
    """Write and verify a Hugging Face directory."""
    input:
        DAG.inputs("conversion"),
    output:
        DAG.stamp("conversion"),
    log:
        DAG.log("conversion"),
    benchmark:
        DAG.benchmark("conversion")
    conda:
        "../environment.yml"
    threads: DAG.threads("conversion")
    resources:
        mem_mb=DAG.memory("conversion"),
    shell:
        "{JOB} --plan {PLAN} --node conversion --work {wildcards.work} > {log:q} 2>&1"
