rule reporting:
    """Write the report."""
    input:
        DAG.inputs("reporting"),
    output:
        DAG.stamp("reporting"),
    log:
        DAG.log("reporting"),
    benchmark:
        DAG.benchmark("reporting")
    conda:
        "../environment.yml"
    threads: DAG.threads("reporting")
    resources:
        mem_mb=DAG.memory("reporting"),
    shell:
        "{JOB} --plan {PLAN} --node reporting --work {wildcards.work} > {log:q} 2>&1"
